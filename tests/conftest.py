"""Settings that every test shares."""

from hypothesis import HealthCheck, settings

# derandomize: the same examples on every machine; no deadline: shared machines are noisy
settings.register_profile(
    "tensoralg",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tensoralg")
