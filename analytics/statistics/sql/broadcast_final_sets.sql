-- Each device in at most one of: done, failed, cancelled, expired; in this precedence.
bitmapAndnot(failed, done) AS failed_only,
bitmapOr(done, failed) AS done_or_failed,
bitmapAndnot(cancelled, done_or_failed) AS cancelled_only,
bitmapOr(done_or_failed, cancelled) AS done_failed_or_cancelled,
bitmapAndnot(expired, done_failed_or_cancelled) AS expired_only,
bitmapOr(done_failed_or_cancelled, expired) AS settled
