importScripts("carillon-webpush.js");

// Firefox without a screen refuses to show notifications, so the test is told what would be shown.
self.registration.showNotification = async (title, { body, tag }) => {
  const answer = await fetch("/", { method: "POST", body: JSON.stringify({ shown: { title, body, tag } }) });
  if (!answer.ok) throw new Error("the test has not answered");
};
