SELECT auction, strftime(epoch_ms(date_time), '%Y-%m-%d') AS day,
    count(*),
    count(*) FILTER (price < 10000),
    count(*) FILTER (price >= 10000 AND price < 1000000),
    count(*) FILTER (price >= 1000000),
    min(price), max(price), CAST(sum(price) // count(*) AS BIGINT), CAST(sum(price) AS BIGINT)
FROM bid
GROUP BY auction, day;
