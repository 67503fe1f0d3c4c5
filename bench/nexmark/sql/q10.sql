SELECT auction, bidder, price, date_time, extra,
    strftime(epoch_ms(date_time), '%Y-%m-%d'), strftime(epoch_ms(date_time), '%H:%M')
FROM bid;
