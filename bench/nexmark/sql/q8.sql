SELECT P.id, P.name, P.window_start
FROM (SELECT DISTINCT id, name, date_time // 10000 * 10000 AS window_start FROM person) AS P
JOIN (SELECT DISTINCT seller, date_time // 10000 * 10000 AS window_start FROM auction) AS A
ON P.id = A.seller AND P.window_start = A.window_start;
