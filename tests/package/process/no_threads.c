/* To be preloaded: pthread_create fails from the n-th call on, n of the variable THREADS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_int made;

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) =
      (int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*))dlsym(RTLD_NEXT,
                                                                                 "pthread_create");
  const char* most = getenv("THREADS");
  if (atomic_fetch_add(&made, 1) >= (most == NULL ? 0 : atoi(most))) return EAGAIN;
  return create(thread, attributes, body, argument);
}
