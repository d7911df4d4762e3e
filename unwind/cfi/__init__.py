"""Call frame information: .eh_frame, .debug_frame and .ARM.exidx to compiled rows."""
