"""Token buckets of registrations."""

from services.domain.limits.registrations import MAX_NETWORKS, RegistrationLimiter


def test_a_bucket_refills_up_to_its_burst() -> None:
    limiter = RegistrationLimiter(per_s=2)
    assert [limiter.take("a", 0) for _ in range(21)] == [True] * 20 + [False]
    assert [limiter.take("a", 499), limiter.take("a", 500), limiter.take("a", 500)] == [False, True, False]
    assert [limiter.take("a", 60_000) for _ in range(21)] == [True] * 20 + [False]
    assert not limiter.take("a", 0)
    assert limiter.take("b", 0)


def test_the_longest_unused_network_is_forgotten() -> None:
    limiter = RegistrationLimiter(per_s=1)
    for number in range(MAX_NETWORKS):
        assert all(limiter.take(str(number), 0) for _ in range(10))
    assert not limiter.take("0", 0)
    assert limiter.take("one more", 0)
    assert len(limiter) == MAX_NETWORKS
    assert (limiter.take("0", 0), limiter.take("1", 0)) == (False, True)


def test_a_network_of_64_bits_of_ipv6_shares_a_bucket() -> None:
    limiter = RegistrationLimiter(per_s=1)
    assert [limiter.take(f"2001:db8::{number}", 0) for number in range(11)] == [True] * 10 + [False]
    assert limiter.take("2001:db8:0:1::1", 0)
