-- Devices of `target` by outcome. When a push has ended in a partition, devices without an outcome are expired or cancelled.
sum(bitmapCardinality(target)) AS targets,
sum(bitmapAndCardinality(target, sent)),
sum(bitmapAndCardinality(target, received)),
sum(bitmapAndCardinality(target, shown)),
sum(bitmapAndCardinality(target, clicked)),
sum(bitmapAndCardinality(target, failed_only)),
sum(bitmapAndCardinality(target, expired_only) + if(is_finished AND NOT is_cancelled, unsettled, 0)),
sum(bitmapAndCardinality(target, cancelled_only) + if(is_cancelled, unsettled, 0))
