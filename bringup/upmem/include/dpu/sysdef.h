/* Names of run-time configuration: tasklets and their numbers. */
#ifndef BRINGUP_DPU_SYSDEF_H
#define BRINGUP_DPU_SYSDEF_H

#ifndef NR_TASKLETS
#define NR_TASKLETS 1
#endif
#ifndef NR_THREADS
#define NR_THREADS NR_TASKLETS
#endif

#define DPU_NR_THREADS 24

typedef unsigned int sysname_t;

#endif
