/* Random delays of queued work, so that a missing wait shows: another order than the usual one, for each seed another.
 *
 * Short work on an idle stream is queued too, mostly: what runs on the caller can be early, but never late. The n-th
 * draw of a stream depends on the seed, the device, the stream's slot and n only: it is the same in every run that
 * queues the same work on that stream, whatever the other streams do.
 */
#include "sim.h"

static uint64_t next_draw(sim_stream *stream) { /* the caller holds stream->lock */
  const sim_device *d = stream->device;
  uint64_t kind = (uint64_t)d->index * SIM_MAX_STREAMS + stream->slot;
  return sim_draw(d->owner->options.jitter_seed ^ kind << 32, 0x6a, stream->jitter_draws++);
}

/* One in eight still runs at once: so do most in ordinary runs. */
int sim_jitter_queues(sim_stream *stream) { return next_draw(stream) % 8 != 0; }

/* Half of the work starts at once, a sixteenth up to 4 ms later: that is longer than a Python thread takes for several
 * ops, or for one that frees memory and its neighbour that takes it. The mean is 0.16 ms. */
uint64_t sim_jitter_ns(sim_stream *stream) {
  uint64_t draw = next_draw(stream), length = draw >> 16;
  switch (draw % 16) {
    case 0:
      return length % 4000000;
    case 1:
    case 2:
    case 3:
      return length % 400000;
    case 4:
    case 5:
    case 6:
    case 7:
      return length % 40000;
    default:
      return 0;
  }
}

/* The seed of the next program in a process that runs many; streams draw from the start. Returns how many sims of the
 * process have jitter: 0 means that there was nothing to set. Called while the streams are idle. */
int32_t sim_set_jitter(uint64_t seed) {
  int32_t count = 0;
  pthread_mutex_lock(&sim_process_lock);
  for (sim *s = sim_all; s; s = s->next) {
    if (!s->options.jitter) continue;
    count++;
    s->options.jitter_seed = seed;
    for (int32_t i = 0; i < s->options.devices; i++) {
      for (uint32_t slot = 0; slot < SIM_MAX_STREAMS; slot++) {
        sim_stream *stream = atomic_load(&s->devices[i].streams[slot]);
        if (!stream) continue;
        pthread_mutex_lock(&stream->lock);
        stream->jitter_draws = 0;
        pthread_mutex_unlock(&stream->lock);
      }
    }
  }
  pthread_mutex_unlock(&sim_process_lock);
  return count;
}
