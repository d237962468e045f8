//! The users of a queue.

use std::sync::{Arc, Mutex, Weak};

/// Who uses a queue, which keeps none of them alive.
pub(super) struct Users<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Default for Users<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Users<T> {
    pub fn add(&self, user: Weak<T>) {
        self.0.lock().unwrap().push(user);
    }

    pub fn remove(&self, user: &T) {
        let same = |weak: &Weak<T>| std::ptr::addr_eq(weak.as_ptr(), user);
        self.0.lock().unwrap().retain(|weak| weak.strong_count() > 0 && !same(weak));
    }

    /// The users, out of the lock: what they do may end in this queue again.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().unwrap().iter().filter_map(Weak::upgrade).collect()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap().iter().all(|user| user.strong_count() == 0)
    }
}
