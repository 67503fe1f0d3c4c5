-- The last ten auctions of a seller that have closed and that had a bid, in the order of their ends.
SELECT seller, CAST(sum(final) // count(*) AS BIGINT)
FROM (
    SELECT seller, final, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS age
    FROM (
        SELECT A.id, A.seller, A.expires, max(B.price) AS final
        FROM auction A JOIN bid B ON A.id = B.auction
        WHERE B.date_time BETWEEN A.date_time AND A.expires
        GROUP BY A.id, A.seller, A.expires
    )
)
WHERE age <= 10
GROUP BY seller;
