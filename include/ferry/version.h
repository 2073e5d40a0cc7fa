/* Ferry's version, at compile time and at run time. */
#ifndef FERRY_VERSION_H
#define FERRY_VERSION_H

#include <ferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRY_VERSION_MAJOR 0
#define FERRY_VERSION_MINOR 1
#define FERRY_VERSION_PATCH 0

/* "0.1.0" of the library that runs, which may differ from the header's. Static storage. */
FERRY_API const char *ferry_version(void);

#ifdef __cplusplus
}
#endif

#endif
