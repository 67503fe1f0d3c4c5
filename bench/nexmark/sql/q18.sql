-- Without the fields that are not determined if two bids have the same time.
SELECT auction, bidder, max(date_time) FROM bid GROUP BY auction, bidder;
