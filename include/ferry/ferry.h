/* All of Ferry for applications. Authors of transports and devices include transport.h and device_backend.h too. */
#ifndef FERRY_FERRY_H
#define FERRY_FERRY_H

#include <ferry/agent.h>
#include <ferry/call.h>
#include <ferry/config.h>
#include <ferry/device.h>
#include <ferry/device_map.h>
#include <ferry/error.h>
#include <ferry/future.h>
#include <ferry/log.h>
#include <ferry/message.h>
#include <ferry/metrics.h>
#include <ferry/request.h>
#include <ferry/status.h>
#include <ferry/tensor.h>
#include <ferry/version.h>

#endif
