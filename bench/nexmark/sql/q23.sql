SELECT B.bidder, B.price, B.channel, B.url, B.extra,
    P.id, P.name, P.email_address, P.credit_card, P.city, P.state, P.extra,
    A.item_name, A.description, A.initial_bid, A.reserve, A.date_time, A.expires,
    A.seller, A.category, A.extra
FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder;
