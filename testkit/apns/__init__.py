"""Made-up APNs signing keys and device tokens, in the forms in which Apple issues them."""
