//! The users of a queue.

use std::sync::{Arc, Mutex, Weak};

/// Who uses a queue, which keeps none of them alive. Each poll walks over them, so they are shared
/// with it and copied only by who changes them meanwhile.
pub(super) struct Users<T: ?Sized>(Mutex<Arc<Vec<Weak<T>>>>);

impl<T: ?Sized> Default for Users<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Users<T> {
    pub fn add(&self, user: Weak<T>) {
        Arc::make_mut(&mut self.0.lock().unwrap()).push(user);
    }

    pub fn remove(&self, user: &T) {
        let same = |weak: &Weak<T>| std::ptr::addr_eq(weak.as_ptr(), user);
        Arc::make_mut(&mut self.0.lock().unwrap())
            .retain(|weak| weak.strong_count() > 0 && !same(weak));
    }

    /// The users, out of the lock: what they do may end in this queue again.
    pub fn all(&self) -> impl Iterator<Item = Arc<T>> + use<T> {
        let users = Arc::clone(&self.0.lock().unwrap());
        (0..users.len()).filter_map(move |index| users[index].upgrade())
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap().iter().all(|user| user.strong_count() == 0)
    }
}
