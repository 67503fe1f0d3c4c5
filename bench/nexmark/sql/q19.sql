-- Without the fields that are not determined if two bids have the same price.
SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank, price
FROM bid
QUALIFY rank <= 10;
