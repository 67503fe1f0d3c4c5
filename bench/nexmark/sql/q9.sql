-- Without the fields that are not determined if two bids have the same price and time.
SELECT A.*, B.price, B.date_time
FROM auction A JOIN bid B ON A.id = B.auction
WHERE B.date_time BETWEEN A.date_time AND A.expires
QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time) = 1;
