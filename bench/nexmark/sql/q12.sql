-- Windows depend on the clock; so this is the sum of all windows of a bidder.
SELECT bidder, count(*) FROM bid GROUP BY bidder;
