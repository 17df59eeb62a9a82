"""Who runs when: waiting rows by urgency, admission, chunked prefill, preemption."""
