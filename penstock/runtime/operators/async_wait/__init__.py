"""The operator of `AsyncDataStream`, which has requests in flight.

`operator.py` has the operator, `request.py` a request and a call, and `request_queues.py` the order
in which results leave. `call_forms.py` has the arguments and results of calls, `call_timers.py` the
times of timeouts and repetitions, and `call_pacer.py` the limits of rates. `shared_results.py` is
the cache. The functions of users are called by `penstock.runtime.user_code.async_caller_factory`.

The operator is the first one of its chain. Requests in flight are like a longer input channel: a
watermark, a probe of a loop and the end of the input wait in the operator until the results of all
records before them are emitted. Only then does the task handle them.
"""
