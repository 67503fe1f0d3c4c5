SELECT B.auction, B.bidder, B.price, B.date_time, S.value
FROM bid B JOIN (
    SELECT range AS key, CAST(range AS VARCHAR) AS value FROM range(10000)
) AS S
ON B.auction % 10000 = S.key;
