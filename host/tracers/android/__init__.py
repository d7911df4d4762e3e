"""Starting a tracer on a device: routes into an app, what is brought there, what is pulled."""
