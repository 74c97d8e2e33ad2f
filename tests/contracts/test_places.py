"""The contract of places that all heads reach, on a disk; the other storages are in real/."""

from pathlib import Path

import pytest

from primusd.shared_places import SharedPlace
from tests.contracts.place_contract import PlaceContract, name


class TestFolder(PlaceContract):
    @pytest.fixture
    def shared(self, tmp_path: Path) -> SharedPlace:
        return SharedPlace(f"file://{tmp_path}/{name()}", {})
