from tests.decoding.conftest import subwords as subwords
