"""Models for a CPU: exported once, translated with by ONNX Runtime and numpy, without torch.

graph.py    weights → the layers of encoder and decoder as ONNX graphs
export.py   a trained model → a folder, in float32 or int8
engine.py   that folder → hypotheses
passes.py   which sentences share a pass
search.py   what is left to do after the passes: lengths, repeats, paths
output.py   hidden states → the likeliest word of each position (with _output.c)
ctranslate.py  an autoregressive model → a folder of CTranslate2
"""
