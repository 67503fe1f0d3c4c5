"""Event time: watermark strategies, as far as Penstock has them."""
