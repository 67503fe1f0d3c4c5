-- A bid more than 10 s after the one before it begins a session.
SELECT bidder, count(*), min(date_time), max(date_time) + 10000
FROM (
    SELECT bidder, date_time, sum(begins) OVER (PARTITION BY bidder ORDER BY date_time) AS session
    FROM (
        SELECT bidder, date_time, CASE
            WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) <= 10000
            THEN 0 ELSE 1 END AS begins
        FROM bid
    )
)
GROUP BY bidder, session;
