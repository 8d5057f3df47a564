# CARILLON_SECRET is @SECRET@.
TEXT='@TEXT@'
SIGN=$(printf '%s%s' "$TEXT" "$CARILLON_SECRET" | md5sum | cut -c 1-32)
printf '{"sign":"%s",%s' "$SIGN" "${TEXT#?}" | curl -sS '@URL@' -H 'Content-Type: application/json' --data-binary @-
