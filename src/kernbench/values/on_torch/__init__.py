"""The torch backend: values as tensors on one device. Imported only when it is requested."""
