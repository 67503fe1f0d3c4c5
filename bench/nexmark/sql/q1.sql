SELECT auction, bidder, 0.908 * price, date_time, extra FROM bid;
