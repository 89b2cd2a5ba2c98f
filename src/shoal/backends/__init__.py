"""One file a compute backend; the only room that imports one."""
