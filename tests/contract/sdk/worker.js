importScripts("carillon-webpush.js");
