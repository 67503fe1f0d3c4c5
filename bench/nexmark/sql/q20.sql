SELECT B.*, A.item_name, A.description, A.initial_bid, A.reserve, A.date_time, A.expires,
    A.seller, A.category, A.extra
FROM bid B JOIN auction A ON B.auction = A.id
WHERE A.category = 10;
