// Shows pushes while no page is open. A copy of carillon-webpush.js lies on the same site.
importScripts("../carillon-webpush.js");
