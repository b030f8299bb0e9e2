"""The model and the number of a request that is too large, from its beginning."""

import json

import pytest

from sweeper.engine import wire

NAMED = {"model_id": "a:train:0", "seq_id": 300}


def test_the_head_of_a_pass():
    whole = wire.pb.ForwardBackwardRequest(**NAMED)
    whole.data.add().model_input.add().encoded_text.tokens = bytes(1000)
    data = whole.SerializeToString()
    assert wire.protobuf_head(data[:100]) == NAMED and wire.protobuf_head(data[100:]) == {}
    assert wire.protobuf_head(data[:11]) == {"model_id": "a:train:0"}
    for cut in range(11):
        assert "seq_id" not in wire.protobuf_head(data[:cut])
        assert wire.protobuf_head(b"\xff" * cut) == {}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({**NAMED, "x": "y" * 5000}, NAMED),
        ({"path": "model_id", "x": ["seq_id", 5, {"model_id": "b"}], **NAMED}, NAMED),
        ({"x": {"seq_id": 7, "model_id": "b"}, "model_id": "a:train:0"}, {"model_id": "a:train:0"}),
        ({"x": "y" * 5000, **NAMED}, {}),
        ({"x": '","model_id":"b","seq_id":9,"' * 500, **NAMED}, {}),
        ({"seq_id": "300", "model_id": None}, {}),
        ({"seq_id": 1.5, "model_id": "a:train:0"}, {"model_id": "a:train:0"}),
        ({"seq_id": 10**4000, "model_id": "a:train:0"}, {"model_id": "a:train:0"}),
        ({"seq_id": True, "model_id": None, "x": 3}, {}),
        ({"x": 1e-5, "y": -3, **NAMED}, NAMED),
    ],
)
def test_the_head_of_a_json_request(document, expected):
    assert wire.json_head(json.dumps(document).encode()[:4096]) == expected
