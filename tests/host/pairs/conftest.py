from tests.sessions.pairs.conftest import pool, pool_in_library

__all__ = ["pool", "pool_in_library"]
