"""The specifications of operators: what the compiler and the runtime must know about each."""
