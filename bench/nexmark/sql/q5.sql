-- The windows of a bid begin at the last multiple of 2 s, and at the four before it.
WITH counts AS (
    SELECT auction, count(*) AS num, date_time // 2000 * 2000 - shift AS window_start
    FROM bid, (VALUES (0), (2000), (4000), (6000), (8000)) AS shifts(shift)
    GROUP BY auction, window_start
)
SELECT window_start + 10000, auction, num
FROM counts JOIN (SELECT window_start, max(num) AS most FROM counts GROUP BY window_start) AS best
USING (window_start)
WHERE num >= most;
