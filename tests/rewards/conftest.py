from __future__ import annotations

import pytest
from reward_samples import alive

from roll_lightning.rewards import RewardPool


@pytest.fixture
def make_pool():
    pools = []

    def make(*rewards, **options):
        pools.append(RewardPool(rewards, **{"workers": 1, "deadline": 30.0, **options}))
        return pools[-1]

    yield make
    pids = [pid for pool in pools for pid in pool.pids()]
    for pool in pools:
        pool.close()
    assert not any(alive(pid) for pid in pids)
