-- The average of whole numbers is a whole number in Flink.
SELECT category, CAST(sum(final) // count(*) AS BIGINT)
FROM (
    SELECT max(B.price) AS final, A.category
    FROM auction A JOIN bid B ON A.id = B.auction
    WHERE B.date_time BETWEEN A.date_time AND A.expires
    GROUP BY A.id, A.category
)
GROUP BY category;
