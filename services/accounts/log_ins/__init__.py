"""Log-ins: passwords, one-time codes and links, known browsers, and limits of attempts."""
