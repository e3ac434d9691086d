"""What kernel code calls `tl`: a kernel is a plain function, and `tl` takes it to the PE and back."""
