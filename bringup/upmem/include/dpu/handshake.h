/* A meeting of two tasklets: the one that notifies waits until the other has taken it. */
#ifndef BRINGUP_DPU_HANDSHAKE_H
#define BRINGUP_DPU_HANDSHAKE_H

#include <sysdef.h>

void handshake_notify(void);
void handshake_wait_for(sysname_t notifier);

#endif
