"""The command line `rleventlog`: thin commands over the library, and the demo."""
