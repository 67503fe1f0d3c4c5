SELECT strftime(epoch_ms(date_time), '%Y-%m-%d') AS day,
    count(*),
    count(*) FILTER (price < 10000),
    count(*) FILTER (price >= 10000 AND price < 1000000),
    count(*) FILTER (price >= 1000000),
    count(DISTINCT bidder),
    count(DISTINCT bidder) FILTER (price < 10000),
    count(DISTINCT bidder) FILTER (price >= 10000 AND price < 1000000),
    count(DISTINCT bidder) FILTER (price >= 1000000),
    count(DISTINCT auction),
    count(DISTINCT auction) FILTER (price < 10000),
    count(DISTINCT auction) FILTER (price >= 10000 AND price < 1000000),
    count(DISTINCT auction) FILTER (price >= 1000000)
FROM bid
GROUP BY day;
