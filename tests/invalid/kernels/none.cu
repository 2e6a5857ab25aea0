// No kernel is here.
