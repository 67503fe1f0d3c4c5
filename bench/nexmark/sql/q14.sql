SELECT auction, bidder, 0.908 * price,
    CASE
        WHEN hour(epoch_ms(date_time)) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(epoch_ms(date_time)) <= 6 OR hour(epoch_ms(date_time)) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END,
    date_time, extra, length(extra) - length(replace(extra, 'c', ''))
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
