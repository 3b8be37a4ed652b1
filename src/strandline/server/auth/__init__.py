"""Who a request is from: Basic, tokens, signatures of S3. Pure checks, and what is remembered of them."""
