SELECT B.auction, B.bidder, B.price, B.date_time, B.extra
FROM bid B JOIN (
    SELECT max(price) AS most, date_time // 10000 * 10000 AS window_start
    FROM bid
    GROUP BY window_start
) AS windows
ON B.price = most AND B.date_time BETWEEN window_start AND window_start + 10000;
