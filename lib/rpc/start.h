/* Opening and closing what an agent needs to serve. */
#ifndef FERRY_RPC_START_H
#define FERRY_RPC_START_H

#include "rpc/agent.h"

/* Closes transports, naming, threads and descriptors; the lock is not held and nobody uses the agent any more. Safe after a start that failed half way. */
void agent_close(struct ferry_agent *agent);

#endif
